"""Families of transformers without maps to look at in the tests, by the reason for it."""

REASONS = {
    "has no model of its own": """
        EvollaModel aimv2_text_model align_text_model align_vision_model altclip_text_model
        altclip_vision_model blip_2_vision_model blip_text_model blip_vision_model
        blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher
        bridgetower_text_model bridgetower_vision_model canary_decoder chameleon_vqgan
        chinese_clip_text_model chmv2 clap_audio_model clap_text_model clipseg_text_model
        clipseg_vision_model clvp_decoder clvp_encoder colmodernvbert colpali colqwen2
        csm_depth_decoder_model deepseek_ocr2_encoder deepseek_ocr2_sam_vision_model
        deepseek_ocr2_text deepseek_ocr2_vision depth_anything dia_decoder dia_encoder
        edgetam_mask_decoder edgetam_prompt_encoder edgetam_video_mask_decoder
        edgetam_video_prompt_encoder emu3_text_model emu3_vqgan encoder-decoder eomt eomt_dinov3
        ernie4_5_vl_moe_text ernie4_5_vl_moe_vision evolla fastspeech2_conformer_hifigan
        flava_image_codebook flava_image_model flava_multimodal_model flava_text_model
        florence_vision gemma4_unified_audio gemma4_unified_vision git_vision_model
        got_ocr2_vision granite4_vision_text granite_speech_encoder granite_speech_plus_encoder
        groupvit_text_model groupvit_vision_model idefics2_perceiver idefics2_vision
        idefics_perciever idefics_vision inkling_audio inkling_vision instructblip_qformer
        instructblip_vision_model instructblipvideo_qformer instructblipvideo_vision_model
        janus_vision_model janus_vqgan jev kosmos_2_5_text_model kosmos_2_5_vision_model
        kosmos_2_text_model kosmos_2_vision_model layoutxlm llama4_vision_model
        metaclip_2_text_model metaclip_2_vision_model minicpmv4_6_vision minimax_m3_vl_vision
        mllama_text_model mllama_vision_model molmo2_adapter molmo2_vision
        moonshine_streaming_encoder moshi_depth musicgen_decoder musicgen_melody_decoder
        ovis2_vision owlv2_text_model owlv2_vision_model owlvit_text_model owlvit_vision_model
        paddleocr_vl_text paddleocr_vl_vision phi4_multimodal_audio phi4_multimodal_vision
        pix2struct pix2struct_text_model pix2struct_vision_model pop2piano pp_chart2table
        pp_chart2table_vision pp_doclayout_v2 pp_formulanet pp_formulanet_text
        pp_formulanet_vision pp_lcnet pp_lcnet_v3 pp_lcnet_v4 pp_ocrv5_mobile_det
        pp_ocrv5_server_det prompt_depth_anything qwen2_5_omni qwen2_5_omni_audio_encoder
        qwen2_5_omni_bigvgan qwen2_5_omni_dit qwen2_5_omni_talker qwen2_5_omni_text
        qwen2_5_omni_token2wav qwen2_5_omni_vision_encoder qwen2_vl_vision qwen3_omni_moe
        qwen3_omni_moe_audio_encoder qwen3_omni_moe_talker_code_predictor
        qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_omni_moe_vision_encoder rag
        rf_detr_dinov2 rt_detr_resnet sam2_mask_decoder sam2_prompt_encoder
        sam2_video_mask_decoder sam2_video_prompt_encoder sam3_detr_decoder sam3_detr_encoder
        sam3_geometry_encoder sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder
        sam3_lite_text_geometry_encoder sam3_lite_text_mask_decoder sam3_mask_decoder
        sam3_tracker_mask_decoder sam3_tracker_prompt_encoder sam3_tracker_video_mask_decoder
        sam3_tracker_video_prompt_encoder sam_hq_mask_decoder sam_hq_prompt_encoder
        sam_mask_decoder sam_prompt_encoder sapiens2_head shieldgemma2 siglip2_text_model
        siglip_text_model slanet slanext slanext_vision speech-encoder-decoder speecht5_hifigan
        step3p5 step3p5_vision superglue superpoint t5_gemma_module t5gemma2_decoder t5gemma2_text
        tipsv2_dpt trocr unlimited_ocr_sam_vision_model unlimited_ocr_text unlimited_ocr_vision
        unlimited_ocr_vision_encoder upernet uvdoc_backbone vibevoice_diffusion videomt
        videoprism_text_model vision-encoder-decoder vitmatte vitpose vitpose_backbone
        xclip_text_model xclip_vision_model zoedepth
    """,
    "stays large": """
        align bark blt clap convnext convnextv2 cvt deimv2 depth_pro dia dinov3_convnext
        edgetam_video efficientnet fastspeech2_conformer_with_hifigan florence2 glm46v glm4v
        glm4v_moe glm4v_moe_vision glm4v_vision glm5_next_vision glm_ocr glm_ocr_vision glmga
        inkling2_vision janus llama4 longcat_flash luke muse_glimmer pe_audio pp_doclayout_v3
        pp_doclayout_v4 regnet resnet rt_detr rt_detr_v2 sam2 sam2_hiera_det_model sam2_video
        sam2_vision_model sam3_tracker sam3_tracker_video sam3_video seamless_m4t seamless_m4t_v2
        tvp vibevoice vibevoice_asr vits
    """,
    "takes neither tokens nor pictures": """
        audio-spectrogram-transformer audioflamingo3_encoder canary cohere_asr dac data2vec-audio
        decision_transformer encodec fun_asr_nano_encoder gemma3n_audio gemma4_audio
        glmasr_encoder granite_speech5_ctc granite_speech5_encoder hubert lasr_ctc lasr_encoder
        mimi_encoder moonshine moss_transcribe_diarize_audio muse_glimmer_assistant
        muse_spark_audio nemotron3_5_asr nemotron3_5_transcribe_asr_audio
        nemotron3_diarization_audio nemotron_asr_streaming nemotron_asr_streaming_encoder
        oneformer parakeet_ctc parakeet_encoder parakeet_rnnt parakeet_tdt patchtsmixer patchtst
        pe_audio_encoder perceiver pi0 pocket_tts_audio_tokenizer_encoder qwen2_audio_encoder
        qwen3_asr_encoder sew sew-d speech_to_text speecht5 timesfm timesfm2_5 unispeech
        unispeech-sat univnet vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder
        vibevoice_acoustic_tokenizer_encoder videoprism videoprism_vision_model vjepa2
        voxtral_encoder voxtral_realtime_encoder wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm
        whisper xcodec
    """,
    "cannot be built small": """
        autoformer bamba bit bridgetower chameleon cohere_compass cohere_compass_text
        conditional_detr cosmos3_edge cosmos3_edge_text csm d_fine dab-detr dbrx deepseek_ocr2
        deformable_detr detr diffusion_gemma diffusion_gemma_text dinat dots1 dots3_note
        dots3_note_audio_encoder dots3_note_text dots3_note_vision_encoder edgetam
        edgetam_vision_model efficientloftr embedding_gemma2 embedding_gemma2_text emu3
        ernie4_5_vl_moe esm esmc esmfold2 fast_vlm fun_asr_nano funnel gemma3n gemma3n_text
        gemma3n_vision gemma4 gemma4_assistant gemma4_text gemma4_unified gemma4_unified_assistant
        gemma4_unified_text glm5_next glm5_next_text gpt_neo gradium_phonon_tts granite4_vision
        granite_docling granitemoehybrid grounding-dino higgs_audio_v2_tokenizer hunyuan_v1_dense
        hunyuan_v1_moe hunyuan_vl hunyuan_vl_text informer inkling2 kosmos-2 kyutai_speech_to_text
        layoutlmv2 lfm2_moe lw_detr lw_detr_vit mamba2 mimi mimi_decoder ministral
        mm-grounding-dino molmo2 moonshine_streaming muse_spark musicgen musicgen_melody
        nemo_speechlm nemotron nemotron3_5_transcribe_audio nemotron3_5_transcribe_word_timestamp
        nemotron3_diarization nemotron_h_omni neomme neucodec nougat omdet-turbo pe_audio_video
        pe_audio_video_encoder pe_video pe_video_encoder perception_lm pocket_tts
        pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pp_ocrv6_medium_det
        qwen4_exp qwen4_exp_text reformer swinv2 t5gemma2_encoder table-transformer
        time_series_transformer timm_backbone timm_wrapper voxtral_realtime_text xcodec2 zamba
        zamba2 zaya
    """,
    "is refused": """
        axk1 axk2 bailing_hybrid blip_2_qformer bros canine clvp codegen cohere_compass_vision
        cosmos3_edge_vision cpmant deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 donut-swin
        exaone4_5_vision falcon_mamba fastspeech2_conformer flava fnet focalnet gemma4_vision
        glm4_moe_lite glm4v_moe_text glm4v_text glm_image glm_image_text glm_image_vision
        glm_image_vqmodel glm_moe_dsa glm_ocr_text glpn gptj granite_docling_vision hgnet_v2 hiera
        hunyuan_vl_vision idefics idefics3_vision instructblip instructblipvideo internvl_vision
        jamba kimi_k25 kimi_k25_vision kimi_linear layoutlmv3 led levit lfm3_vl_vision lightglue
        longformer longt5 lxmert mamba mask2former maskformer maskformer-swin mgp-str minicpm3
        minicpm_ocr_vision minicpmv4_7_vision mistral4 mistral_large4 mistral_large4_text
        mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 mra muse_glimmer_vision muse_spark_vision
        paddleocr_vl pegasus_x pixio poolformer pp_ocrv5_mobile_rec
        pp_ocrv5_server_rec pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec prophetnet pvt
        pvt_v2 qianfan_ocr_vision qwen2_5_omni_thinker qwen2_5_vl qwen2_5_vl_text
        qwen2_5_vl_vision qwen2_vl qwen2_vl_text qwen3_5_moe_vision qwen3_5_vision
        qwen3_omni_moe_thinker qwen3_vl_moe_vision qwen3_vl_vision qwen4_exp_vision radio rf_detr
        rwkv sam sam3_lite_text_text_model sam3_vision_model sam3_vit_model sam_hq
        sam_hq_vision_model sam_vision_model sapiens2 segformer seggpt siglip2_vision_model
        smolvlm_vision squeezebert stablelm step3p7 swiftformer swin swin2sr t5gemma2 textnet
        timesformer udop uvdoc video_llama_3_vision videomae vilt vit_mae vivit voxtral_realtime
        xlstm xmod yolos yoso youtu
    """,
}

WITHOUT_MAPS = {family: reason for reason, families in REASONS.items() for family in families.split()}
